"""Tasks tie data, model, loss and metric together. One package per task; `registry.py` lists them."""

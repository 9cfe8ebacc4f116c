"""The server behind `regard look`: traces of running models, and the page that shows them."""

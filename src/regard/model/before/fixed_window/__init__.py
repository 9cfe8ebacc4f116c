"""Feed-forward networks over a window or a whole sentence of fixed length: DNN1, DNN2, context vectors."""

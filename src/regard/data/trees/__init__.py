"""Constituency trees: reading and cleaning treebanks, linearizing trees for a model, drawing them."""

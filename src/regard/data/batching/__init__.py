"""Batches for training: by tokens in length buckets, as windows of a text, as packed documents, masked.

epochs          the base of all batch streams: epochs that can be resumed and sharded; the counter-based generator
token_batches   sequences (pairs, labeled texts) in batches of about equally many tokens; buckets.py plans them
item_weights    how often items occur in an epoch
windows         rows of a fixed length from one long token stream
packing         documents packed into rows of a fixed length
row_batch       rows of tokens with targets
masking         masked language modeling
"""

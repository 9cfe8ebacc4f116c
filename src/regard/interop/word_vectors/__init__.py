"""Files of word vectors: word2vec (text and binary), GloVe, fastText's .vec, and safetensors with a vocabulary.

detection     which format a file has, by its content
text, binary  reading and writing in blocks of rows
tensors       vectors and words in one safetensors file, which is memory-mapped
opening       a file of any format as `KeyedVectors`, as a dictionary, or just its dimension
writing       the vectors of a file or model in a format
"""

from regard.interop.word_vectors.detection import is_vector_file, looks_like_vectors
from regard.interop.word_vectors.opening import open_word_vectors, read_word_vectors, word_vector_dimension
from regard.interop.word_vectors.text import write_word_vectors
from regard.interop.word_vectors.writing import VECTOR_FORMATS, export_word_vectors, import_word_vectors

__all__ = [
    "VECTOR_FORMATS",
    "export_word_vectors",
    "import_word_vectors",
    "is_vector_file",
    "looks_like_vectors",
    "open_word_vectors",
    "read_word_vectors",
    "word_vector_dimension",
    "write_word_vectors",
]

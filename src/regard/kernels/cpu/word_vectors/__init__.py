"""Updates of static word vectors on a CPU, compiled with numba."""

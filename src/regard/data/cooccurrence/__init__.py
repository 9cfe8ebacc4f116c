"""How often words occur near each other, counted in a text of any size (Pennington et al. 2014)."""

from regard.data.cooccurrence.counting import CooccurrenceConfig, cached_cooccurrences, count_cooccurrences
from regard.data.cooccurrence.matrix import Cooccurrences, PairBlock

__all__ = ["CooccurrenceConfig", "Cooccurrences", "PairBlock", "cached_cooccurrences", "count_cooccurrences"]

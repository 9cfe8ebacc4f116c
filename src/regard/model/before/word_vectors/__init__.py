"""Static word vectors: one vector per word, whatever its context (Mikolov et al. 2013, Pennington et al. 2014)."""

"""Export to CTranslate2, and CTranslate2 as the inference engine of a run folder."""

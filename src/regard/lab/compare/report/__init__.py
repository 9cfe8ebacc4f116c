"""The report of a comparison: what the results say, section by section."""

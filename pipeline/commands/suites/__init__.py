"""`verizero eval`: named suites of questions, asked of one model or of two."""

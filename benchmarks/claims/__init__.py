"""Published claims about RL of language models, each put to a small test that was written before."""

"""The words, signs and units that answers are made of, as tables and patterns; nothing is parsed here."""

"""The reader of answers: from text over tokens to a syntax tree. Nothing is evaluated here."""

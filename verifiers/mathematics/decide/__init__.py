"""The decision whether an answer equals the gold: by form, by exact value, by guaranteed bounds, by algebra."""

"""`from verizero.trl import GRPOConfig, GRPOTrainer`: scripts written for TRL as recipes of this project."""

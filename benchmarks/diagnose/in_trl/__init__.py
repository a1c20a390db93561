"""Faults of scripts of TRL, planted in real runs of it: what a diagnosis of its logs is measured on."""

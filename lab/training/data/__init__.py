"""Synthetic conversations, generated from a seed."""

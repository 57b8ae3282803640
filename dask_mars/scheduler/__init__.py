"""Deciding what runs where and when, and the shell that carries it out."""

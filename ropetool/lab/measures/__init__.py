"""Measures for research, one file each, found by discovery."""

"""Yardsticks: attention that no file can hold, put into a loaded model while it is scored, to judge tables against."""

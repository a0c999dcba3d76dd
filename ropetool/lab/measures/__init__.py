"""Measures for research, a file per measure. ropetool discovers them."""

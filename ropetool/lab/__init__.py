"""The laboratory: features for research. The core loads them only by the names in `ropetool.registry`."""

"""Research features. The core loads them only by the names in `ropetool.registry`."""

"""A push of models and data: what a tree consists of, and the chain that carries its blocks."""

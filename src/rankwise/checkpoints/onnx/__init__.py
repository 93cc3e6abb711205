"""ONNX models → named tensors: what is stored, and what the graph uses it for."""

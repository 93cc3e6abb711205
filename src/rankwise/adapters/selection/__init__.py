"""One network → the layers to fine-tune, and their LoRA ranks, in the forms of other tools."""

"""Two networks → an adapter for the first: a plan with ranks, then a folder that PEFT loads."""

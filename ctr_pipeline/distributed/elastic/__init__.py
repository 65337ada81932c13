"""Elastic runs of any TensorFlow script: a rendezvous, and an agent beside each script.

The decisions on who trains together are in `coordination.rendezvous`. `service` serves them,
`client` asks for them, and `agent` starts and stops the script accordingly.
"""

"""How members talk: gRPC with control messages as JSON and tensors as packed bytes.

Every call carries the job's token and the protocol version; with TLS both sides also prove that the
job's own certificate authority signed them.
"""

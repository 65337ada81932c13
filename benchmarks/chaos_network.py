"""Faults of the network, on members that are started by hand with proxies between them."""

from chaos_faults import Fault

NETWORK_FAULTS: tuple[Fault, ...] = ()

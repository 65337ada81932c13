"""The elastic runtime: one master, N parameter servers, a changing number of workers.

- `coordination`: every decision, pure: (state, event, now) → (state, actions). No input, no output.
- `rpc`: how members talk: gRPC with control messages as JSON and tensors as packed bytes.
- `ps`: a parameter server: rows of its partitions and its range of the dense parameters.
- `worker`: leases tasks, pulls, computes, pushes, reports.
- `master`: the ledger of tasks, members, cuts, validation, status. Never on the gradient path.
- `local`: the launcher that makes members processes of this machine.

A *task* is 64 batches of an epoch's permutation. A *lease* gives it to one worker under an
*attempt* number; reports of older attempts are refused. A *generation* counts rollbacks; parameter
servers refuse everything of an older one. A *cut* is a consistent checkpoint: the ledger is frozen
first, then every parameter server snapshots itself together with the *marks* of the batches that it
applied. So the snapshots hold whatever the frozen ledger counts, and a batch that they hold beyond
it is not applied again when it is trained again.
"""

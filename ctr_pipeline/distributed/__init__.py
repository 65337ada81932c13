"""The elastic runtime: one master, N parameter servers, a changing number of workers.

- `coordination`: every decision, pure: (state, event, now) → (state, actions). No input, no output.
- `rpc`: how members talk: gRPC with control messages as JSON and tensors as packed bytes.
- `ps`: a parameter server: rows of its partitions and its range of the dense parameters.
- `worker`: leases tasks, pulls, computes, pushes, reports.
- `master`: the ledger of tasks, members, cuts, validation, status. Never on the gradient path.
- `launchers`: what starts and stops members, one for each `runtime.mode` with members.
- `elastic`: rendezvous and agents for any TensorFlow script; no master, servers or tasks.

A *task* is 64 batches of an epoch's permutation. A *lease* gives it to one worker. A *cut* is a
consistent checkpoint: the ledger is frozen first, then every parameter server snapshots itself
together with the bitmaps of the batches that it applied. So the snapshots hold whatever the frozen
ledger counts, and a batch that they hold beyond it is not applied again when it is trained again.

Five counters tell what is out of date, from the longest-lived to the shortest:

| counter | counts | goes up | what it voids |
|---|---|---|---|
| generation | rollbacks of the job | when the job goes back to a cut | older calls to servers |
| era | base records of the ledger | at an epoch, a cut, a rollback | older task records |
| incarnation | processes of a member (random) | when one starts | messages of the one before |
| round | synchronous updates of a server | when enough pushes came | nothing: see `rounds` |
| attempt | leases of a task | when it is leased again | reports and pushes of older leases |
"""

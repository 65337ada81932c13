"""What embedding rows are made of and how they are trained: plain frozen dataclasses.

The config makes them, the job's spec carries them and the store of every process takes them as
they are. Nothing here imports anything heavy, since parameter servers and the master start with it.
"""

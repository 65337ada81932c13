"""Buckets in the memory of this process, under the addresses of S3."""

from contextlib import contextmanager

import obstore
import obstore.fsspec
from obstore.store import MemoryStore

from ctr_pipeline.storage import object_store


class MemoryBuckets:
    """What `s3://BUCKET/KEY` leads to; a bucket is there once it is named.

    Args:
        patch: Undone by the test, and the buckets with it.
    """

    def __init__(self, patch):
        self._stores = {}
        self._patch = patch
        patch.setattr(object_store, "from_url", self._open)
        patch.setattr(obstore.fsspec, "from_url", self._open)

    def _open(self, url, **_options):
        bucket = url.partition("://")[2].partition("/")[0]
        return self._stores.setdefault(bucket, MemoryStore())

    def put(self, address, data):
        """Puts an object, in place of an earlier one."""
        obstore.put(self._open(address), _key_of(address), data)

    def delete(self, address):
        """Deletes an object."""
        obstore.delete(self._open(address), _key_of(address))

    @contextmanager
    def counted_ranges(self):
        """The ranges [start, end) that are asked for, in the order of the requests."""
        ranges = []
        read_range = object_store.ObjectStore.read_range

        def record(store, key, start, num_bytes, **options):
            ranges.append((start, start + num_bytes))
            return read_range(store, key, start, num_bytes, **options)

        with self._patch.context() as patch:
            patch.setattr(object_store.ObjectStore, "read_range", record)
            yield ranges


def _key_of(address):
    return address.partition("://")[2].partition("/")[2]

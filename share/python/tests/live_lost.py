# SPDX-License-Identifier: Apache-2.0
"""A node that nobody sees any more, as its control tells of it: $SDK_LOST is a
sandbox there.  tests/sys/sdk-remote.t runs one at a time."""
import os
import unittest

import dsec
from dsec import RetryPolicy
from live import Live


class Lost(Live):
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.client._core.retry = RetryPolicy(lost_s=0)
        self.sb = self.client.sandbox(os.environ["SDK_LOST"])

    async def test_away(self):
        """a node that is away: the platform's, to be tried again (107)"""
        with self.assertRaises(dsec.Busy) as e:
            await self.sb.run(["true"])
        self.assertEqual((e.exception.code, e.exception.infra,
                          e.exception.retry, e.exception.new_sandbox),
                         ("node_away", True, True, False))
        self.assertGreater(e.exception.retry_after, 0)

    async def test_lost(self):
        """a node that was lost: the platform's, and a new sandbox (107)"""
        with self.assertRaises(dsec.NodeLost) as e:
            await self.sb.run(["true"])
        self.assertEqual((e.exception.infra, e.exception.retry,
                          e.exception.new_sandbox, e.exception.sandbox),
                         (True, True, True, self.sb.id))

    async def test_back(self):
        """one that comes back has its sandboxes still"""
        self.client._core.retry = RetryPolicy(lost_s=60)
        r = await self.sb.run(["cat", "/tmp/kept"])
        self.assertEqual(r.stdout, "kept")
        await self.sb.stop(grace=0)


if __name__ == "__main__":
    unittest.main()

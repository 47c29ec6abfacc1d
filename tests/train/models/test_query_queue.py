"""NCL's queue of training queries."""

import torch
from vlalign.train.models.base import QueryQueue


def test_a_queue_keeps_the_last_queries_in_a_circle():
    queue = QueryQueue(5, 2)
    assert len(queue.filled()[0]) == 0
    rows = torch.arange(14.0).view(7, 2)
    queue.push(rows[:3], -rows[:3])
    assert queue.filled()[0].tolist() == rows[:3].tolist() and queue.filled()[1].tolist() == (-rows[:3]).tolist()
    queue.push(rows[3:6], -rows[3:6])
    assert queue.filled()[0].tolist() == rows[1:6].tolist() and queue.filled()[1].tolist() == (-rows[1:6]).tolist()
    queue.push(torch.cat([rows, rows]), torch.cat([rows, rows]))
    assert queue.filled()[0].tolist() == rows[2:].tolist()

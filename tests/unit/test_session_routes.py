from __future__ import annotations

import pytest

from deployments.transport.session_routes import SessionRoutes
from specdec_core.errors import StaleMessageError
from specdec_core.messages import Close


class Stream:
    pass


OLD, NEW = Stream(), Stream()


@pytest.fixture
def routes() -> SessionRoutes[Stream]:
    routes: SessionRoutes[Stream] = SessionRoutes()
    routes.open("a", 2, OLD)
    return routes


def test_only_the_owner_under_its_epoch_may_use_a_session(routes: SessionRoutes[Stream]) -> None:
    routes.check("a", 2, OLD)

    for session_id, epoch, stream in (("a", 2, NEW), ("a", 1, OLD), ("a", 3, OLD), ("b", 2, OLD)):
        with pytest.raises(StaleMessageError):
            routes.check(session_id, epoch, stream)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("stream", [OLD, NEW])
def test_an_open_under_no_higher_epoch_is_stale(
    epoch: int, stream: Stream, routes: SessionRoutes[Stream]
) -> None:
    with pytest.raises(StaleMessageError, match="open under epoch 2"):
        routes.open("a", epoch, stream)

    assert routes.owner("a", 2) is OLD


def test_a_higher_epoch_moves_the_session(routes: SessionRoutes[Stream]) -> None:
    routes.open("a", 3, NEW)

    assert routes.owner("a", 2) is None
    assert routes.owner("a", 3) is NEW
    assert routes.close_all(OLD) == []
    assert routes.close_all(NEW) == [Close("a", 3)]
    assert len(routes) == 0


def test_a_close_of_another_epoch_changes_nothing(routes: SessionRoutes[Stream]) -> None:
    routes.close("a", 1)
    routes.close("b", 2)
    assert len(routes) == 1

    routes.close("a", 2)
    assert len(routes) == 0

import jax
import pytest

from remory_jax import AXES, make_mesh


def test_axes_and_free_axis() -> None:
    mesh = make_mesh(tensor=2)
    assert mesh.axis_names == AXES
    assert dict(mesh.shape) == {"data": 4, "fsdp": 1, "tensor": 2}


def test_subset_of_devices_keeps_their_order() -> None:
    devices = jax.devices()[4:]
    mesh = make_mesh(data=2, fsdp=2, devices=devices)
    assert list(mesh.devices.flat) == devices


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 3}, "needs 3 devices and there are 8"),
        ({"tensor": 3}, "a multiple of 3"),
        ({"data": -1, "fsdp": -1}, "at most one"),
        ({"data": 0}, "data = 0"),
        ({"data": 4, "fsdp": 1, "tensor": 1}, "needs 4 devices"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_mesh(**sizes)

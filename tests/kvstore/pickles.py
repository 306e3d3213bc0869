"""A worker that sends servers what MXNet sends with an optimizer: a pickle, here one that leaves a mark where it is read."""

import argparse
import os
import pickle


class Mark:
    """Unpickling it makes a directory."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def main() -> None:
    """Send it as command 0, as `set_optimizer` does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mark")
    args = parser.parse_args()
    import mxnet as mx

    store = mx.kv.create("nalb")
    inner = store.exchange.inner if hasattr(store, "exchange") else store  # under scheme stock it is MXNet's own
    inner._send_command_to_servers(0, pickle.dumps(Mark(args.mark), 0).decode("latin-1"))
    print("sent", flush=True)
    inner._barrier()


if __name__ == "__main__":
    main()

"""The process that `cdk` starts: the application, without a search for garbage."""

import gc


def main() -> None:
    # All that it makes it keeps to its end. Looking for garbage took a seventh of its time, most in imports.
    gc.disable()
    from cdk_app import app

    app.main()


if __name__ == "__main__":
    main()

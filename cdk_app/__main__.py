"""`python -m cdk_app` is the `skypod` command."""

from cdk_app.command import main

main()

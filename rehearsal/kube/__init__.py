"""A small Kubernetes API server and its controllers, for a laptop without docker.

The API server (store, api, watch, validation, auth) speaks enough of the Kubernetes API for the ordinary
Python client. The controllers turn RayClusters, RayServices and Jobs into pods, and the kubelet turns pods
into processes on loopback. All of it lives in one process, started by `process.KubeStandIn`.
"""

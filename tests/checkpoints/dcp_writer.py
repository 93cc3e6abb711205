"""Saves a state as torch.distributed.checkpoint does, from one process."""

import warnings

import torch.distributed.checkpoint as dcp


def save_dcp(state, folder, **options):
    writer = dcp.FileSystemWriter(folder, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is one process
        dcp.save(state, storage_writer=writer, no_dist=True)
    return folder

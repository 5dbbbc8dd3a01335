"""Checkpoints of DeepSpeed's engine, as ds_train.py writes them."""

from __future__ import annotations

from app.domain.checkpoint import terms
from app.domain.checkpoint.result import Export, Resume, SavedFiles
from app.domain.checkpoint.situation import Situation
from app.domain.checkpoint.terms import line, total_bytes
from app.domain.plan import TermResult
from app.domain.recipe.precision import dtype_bytes
from app.domain.units import GB

UNIVERSAL = "python -m deepspeed.checkpoint.ds_to_universal"
OUTPUT_FILE_BYTES = 5 * GB
"""--max_shard_size of zero_to_fp32.py where it is not given."""

EXTRACT_WORKERS = 4
"""--num_extract_workers of ds_to_universal where it is not given."""


def deepspeed_terms(case: Situation) -> tuple[TermResult, ...]:
    """What one save writes, over all ranks."""
    return tuple(t for t in (*_module_terms(case), _partition_term(case)) if t.value)


def deepspeed_files(case: Situation) -> tuple[SavedFiles, ...]:
    """Model states, optimizer states and three small files."""
    s, module, optimizer = case.settings, total_bytes(_module_terms(case)), total_bytes((_partition_term(case),))
    parts = s.tensor_parallel * s.pipeline_parallel
    ranks = s.world_size // parts  # that the states of one part are divided over
    if case.stage == 0:
        whole = "module, optimizer states"
        files = [_files("mp_rank_{part}_model_states.pt", parts, module + optimizer, whole)]
    else:
        each, many = ("zero_pp_rank_{rank}_", parts * ranks) if case.stage == 3 else ("", parts)
        holds = "frozen weights and shapes, each rank its part" if case.stage == 3 else "the module, written by one data-parallel rank"
        prefix = "bf16_" if case.dtypes.compute == "bf16" else ""
        states = "masters and optimizer states, each rank its part"
        if s.offload_optimizer == "nvme":
            states += "; those on the drive are copied to offloaded_tensors/"
        files = [_files(f"{each}mp_rank_{{part}}_model_states.pt", many, module, holds)]
        files.append(_files(f"{prefix}zero_pp_rank_{{rank}}_mp_rank_{{part}}_optim_states.pt", parts * ranks, optimizer, states))
    return (*files, _files("latest, zero_to_fp32.py, zero_to_torch.py", 3, 0, "the newest save's name; converters"))


def deepspeed_exports(case: Situation) -> tuple[Export, ...]:
    """zero_to_fp32.py and the 16-bit gather where each rank has all of a layer; where it has a part, what joins the parts."""
    s = case.settings
    if s.pipeline_parallel > 1 or s.expert_parallel > 1:
        return (_universal(case),)
    if s.tensor_parallel > 1:
        return (_gathered(case),)
    if case.stage == 0:
        return (_plain(case),)
    gathers = case.stage == 3 and not case.adapted
    return (_to_fp32(case), *([_gathered(case)] if gathers else []))


def _gathered(case: Situation) -> Export:
    n, each = case.numbers, dtype_bytes(case.dtypes.compute)
    command = 'engine.save_16bit_model("trained")  # on every rank; ds_config.json allows it'
    if case.stage < 3:
        command = "weights = engine._consolidated_16bit_state_dict()  # on every rank; rank 0 gets them, joined over tensor ranks"
    return Export(
        title=f"One state dict in {case.dtypes.compute}, while training runs",
        commands=(command,),
        host=line(terms.gathered_host_bytes, "overhead", "export", params=n.total, bytes_each=each),
        output_bytes=round(n.total * each),
    )


def _universal(case: Situation) -> Export:
    """A folder a tensor, which is also what other numbers of ranks load."""
    largest = max(f.largest_bytes for f in deepspeed_files(case) if "optim" in f.name or case.stage == 0)
    inject = " --inject_missing_state" if case.stage < 3 else ""
    return Export(
        title="fp32 weights and states, a folder a tensor",
        commands=(f"{UNIVERSAL} --input_folder checkpoints/STEP --output_folder checkpoints/STEP_universal{inject}",),
        host=line(terms.converter_host_bytes, "overhead", "export", workers=EXTRACT_WORKERS, file_bytes=largest),
        output_bytes=total_bytes((_partition_term(case),)),
    )


def deepspeed_resume(case: Situation) -> Resume:
    """ZeRO's files are of one number of ranks; a universal checkpoint is of any."""
    again = "--resume" if case.scripted else "engine.load_checkpoint"
    same = f"{again} loads the save that checkpoints/latest names."
    if case.stage == 0:
        return Resume(same=same, other=f"{again} as well: nothing is divided over data-parallel ranks.")
    states = total_bytes((_partition_term(case),))
    inject = " --inject_missing_state" if case.stage < 3 else ""
    return Resume(
        same=same,
        other="ZeRO refuses another number of data-parallel ranks: convert to a universal checkpoint first, then set "
        '"checkpoint": {"load_universal": true} in ds_config.json. The stage must stay: stage 3 and stages 1 and 2 are cut differently.',
        commands=(f"{UNIVERSAL} --input_folder checkpoints/STEP --output_folder checkpoints/STEP_universal{inject}",),
        # Stage 3 copies one rank's whole file beside the tensors.
        disk_bytes=states + total_bytes(_module_terms(case)) + (states // case.settings.shard_group_size if case.stage == 3 else 0),
    )


def deepspeed_notes(case: Situation) -> tuple[str, ...]:
    """What is easy to get wrong."""
    found = ["Every rank must call save_checkpoint: a call on rank 0 alone waits for ever."]
    if case.adapted:
        found.append(
            "ds_train.py leaves the frozen base out (exclude_frozen_parameters=True); a trainer that does not saves it with every "
            f"checkpoint{', twice' if case.stage == 2 else ''}."
        )
    if case.stage == 3:
        found.append("At stage 3 the model files hold no trained weights: they are restored from the masters beside them.")
    if case.settings.tensor_parallel > 1:
        found.append("zero_to_fp32.py cannot join tensor ranks: it expects as many files as data-parallel ranks, and stops.")
    if case.settings.pipeline_parallel > 1:
        found.append("The pipeline engine writes the weights to a file a layer instead; the bytes are the same.")
    if case.settings.expert_parallel > 1:
        found.append("Experts are written to files of their own, one an expert; the bytes are the same.")
    return tuple(found)


def _module_terms(case: Situation) -> tuple[TermResult, ...]:
    """Weights of the module's own state dict, and the frozen ones again where the engine saves them as fragments."""
    n, each = case.numbers, dtype_bytes(case.dtypes.compute)
    out = []
    if case.stage < 3:
        category = "adapters" if case.adapted else "parameters"
        out.append(line(terms.module_weight_bytes, category, params=n.trainable, bytes_each=each))
    copies = 2 if case.stage == 2 else 1
    frozen = 0 if case.adapted else n.frozen
    out.append(line(terms.saved_frozen_bytes, "parameters", params=frozen, bytes_each=case.frozen_bytes, copies=copies))
    return tuple(t for t in out if t.value)


def _partition_bytes(case: Situation) -> tuple[float, float]:
    """Bytes of master and states for one trained weight: fp32 masters, or the copy ZeRO keeps in the weights' own dtype."""
    d = case.dtypes
    if case.stage == 0:
        # Stage 0 has no mode without masters, and none of its own in fp32, where the module's weights are what is stepped.
        return (0.0, case.state_bytes) if d.compute == "fp32" else (4.0, case.numbers.states_per_param * 4.0)
    return dtype_bytes(d.master) or dtype_bytes(d.param) * d.duplicate_master, case.state_bytes


def _partition_term(case: Situation) -> TermResult:
    master, state = _partition_bytes(case)
    return line(terms.saved_partition_bytes, "optimizer_states", params=case.numbers.trainable, master_bytes=master, state_bytes=state)


def _files(name: str, count: int, total: int, holds: str) -> SavedFiles:
    """Files that divide their bytes evenly."""
    return SavedFiles(name=name, count=count, bytes=total, largest_bytes=-(-total // count), holds=holds)


def _to_fp32(case: Situation) -> Export:
    n, module = case.numbers, total_bytes(_module_terms(case))
    frozen = n.frozen * case.frozen_bytes * (case.stage > 1 and not case.adapted)
    if case.stage == 3:
        host = line(terms.lazy_host_bytes, "overhead", "export", params=n.trainable, bytes_each=4, largest_tensor=n.largest_trained,
                    file_bytes=OUTPUT_FILE_BYTES, frozen_bytes=module)  # fmt: skip
    else:
        host = line(terms.merged_host_bytes, "overhead", "export", params=n.trainable, bytes_each=4, frozen_bytes=frozen,
                    module_bytes=module)  # fmt: skip
    return Export(
        title="Trained weights in fp32, as safetensors",
        commands=("python checkpoints/zero_to_fp32.py checkpoints trained --tag STEP --safe_serialization",),
        host=host,
        output_bytes=4 * (n.trainable + (n.frozen if frozen else 0)),
    )


def _plain(case: Situation) -> Export:
    module, everything = total_bytes(_module_terms(case)), total_bytes(deepspeed_terms(case))
    return Export(
        title="The module's state dict",
        commands=(
            'state = torch.load("checkpoints/STEP/mp_rank_00_model_states.pt", map_location="cpu", weights_only=False)',
            'torch.save(state["module"], "module.pt")',
        ),
        host=line(terms.whole_host_bytes, "overhead", "export", checkpoint_bytes=everything),
        output_bytes=module,
    )

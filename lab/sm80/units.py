#!/usr/bin/env python3
"""Writes the units of the lab: one .cu a kernel pair and variant, and a table of what each is. units.py OUT_DIR [name ...]"""
import pathlib
import sys

SMALL = ".tile_rows = 16, .tile_kv = 64, .warps_rows = 1, .warps_kv = 4"
LARGE = ".tile_rows = 128, .tile_kv = 64, .warps_rows = 4, .warps_kv = 1"


def unit(name, variant="Plain", qk=128, vo=128, q="bf16", kv="bf16", o="bf16", paged=True, fixed=False, rows=None, memory="", compute="", user=None):
    dims = f".head_dim_qk = {qk}, .head_dim_vo = {vo}, .q_dtype = kvloom::DType::{q}, .kv_dtype = kvloom::DType::{kv}, .o_dtype = kvloom::DType::{o}"
    rest = f".paged = {str(paged).lower()}, .fixed_split = {str(fixed).lower()}"
    # Designated initialisers must stand in order: tiles, stages, CTAs, storage, then what is tried.
    def config(text, default):
        parts = dict(p.strip().split(" = ") for p in (dims + ", " + default + ", " + rest + (", " + text if text else "")).split(", ."[0:2]) if p.strip())
        order = [".head_dim_qk", ".head_dim_vo", ".q_dtype", ".kv_dtype", ".o_dtype", ".tile_rows", ".tile_kv", ".warps_rows", ".warps_kv", ".stages", ".ahead",
                 ".ctas_per_sm", ".paged", ".fixed_split", ".q_in_registers", ".place_fp8_values", ".loads_ahead"]
        assert not set(parts) - set(order), set(parts) - set(order)
        return ", ".join(f"{k} = {parts[k]}" for k in order if k in parts)
    return dict(name=name, user=user, variant=variant, qk=qk, vo=vo, q=q, kv=kv, o=o, paged=paged, fixed=fixed, memory=config(memory, SMALL + ", .ctas_per_sm = 3, .q_in_registers = true"),
                compute=config(compute, LARGE + ", .ctas_per_sm = 2"))


WIDE = ".tile_kv = 32, .ctas_per_sm = 1, .q_in_registers = false, .tile_rows = 16, .warps_rows = 1, .warps_kv = 4"
ROWS_32 = ".tile_rows = 32, .stages = 3, .ctas_per_sm = 2, .q_in_registers = false"
ROPE_HALF = "Rope<kvloom::RopeMode::half_split>"
ROPE_NEXT = "Rope<kvloom::RopeMode::interleaved>"
CHECKS = [
    unit("plain"),
    unit("plain_whole", compute="", memory=".stages = 3, .ctas_per_sm = 2"),
    unit("ragged", paged=False),
    unit("rows64", compute=".tile_rows = 64"),
    unit("rows32", memory=ROWS_32),
    unit("rows32_mask", "CustomMask", memory=ROWS_32),
    unit("rows32_softcap_f32", "SoftCap", qk=80, vo=48, o="f32", memory=ROWS_32),
    unit("rows32_alibi_d64", "Alibi", qk=64, vo=64, memory=ROWS_32 + ", .q_in_registers = true, .tile_kv = 128"),
    unit("rows32_sigmoid", "Sigmoid", paged=False, memory=ROWS_32),
    unit("rows32_rope_half", ROPE_HALF, memory=ROWS_32),
    unit("rows32_rope_next_e4m3", ROPE_NEXT, kv="e4m3", memory=ROWS_32 + ", .tile_kv = 128"),
    unit("rows32_e4m3", kv="e4m3", memory=ROWS_32 + ", .tile_kv = 128"),
    unit("rows256", compute=".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1", memory=".tile_kv = 128, .warps_kv = 8, .ctas_per_sm = 1"),
    unit("drift", compute=".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1, .stages = 3, .ahead = 1",
         memory=".tile_kv = 128, .warps_kv = 8, .stages = 3, .ctas_per_sm = 1"),
    unit("drift_softcap", "SoftCap", compute=".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1, .stages = 4, .ahead = 2",
         memory=".tile_kv = 128, .warps_kv = 8, .stages = 3, .ctas_per_sm = 1"),
    unit("drift_mask", "CustomMask", compute=".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1, .stages = 3, .ahead = 1",
         memory=".tile_kv = 128, .warps_kv = 8, .stages = 3, .ctas_per_sm = 1"),
    unit("e4m3_cvt", kv="e4m3", memory=".place_fp8_values = false, .stages = 4, .ctas_per_sm = 2", compute=".place_fp8_values = false"),
    unit("rows8w", compute=".warps_rows = 8", memory=".tile_kv = 128, .warps_kv = 8, .ctas_per_sm = 1"),
    unit("f16_d64", qk=64, vo=64, q="f16", kv="f16", o="f16"),
    unit("d16_f32", qk=16, vo=16, o="f32"),
    unit("d80_f16o", qk=80, vo=80, o="f16"),
    unit("d256", qk=256, vo=256, compute=".tile_rows = 64, .ctas_per_sm = 1", memory=".ctas_per_sm = 1"),
    unit("d192_128", qk=192, vo=128, compute=".ctas_per_sm = 1", memory=".ctas_per_sm = 2"),
    unit("mla", qk=576, vo=512, memory=WIDE, compute=WIDE),
    unit("e4m3", kv="e4m3"),
    unit("e5m2_f16", q="f16", kv="e5m2", o="f16"),
    unit("e4m3_d80", qk=80, vo=48, kv="e4m3", o="f32"),
    unit("e4m3_mla", qk=576, vo=512, kv="e4m3", memory=WIDE, compute=WIDE),
    unit("alibi", "Alibi"),
    unit("softcap", "SoftCap"),
    unit("mask", "CustomMask"),
    unit("alibi_softcap_mask_e4m3", "Compose<Alibi, SoftCap, CustomMask>", qk=64, vo=64, kv="e4m3"),
    unit("sigmoid", "Sigmoid"),
    unit("sigmoid_mask_softcap", "Compose<SoftCap, CustomMask, Sigmoid>", q="f16", kv="f16", o="f32", qk=64, vo=64),
    unit("rope_half", ROPE_HALF),
    unit("rope_next_d64", ROPE_NEXT, qk=64, vo=64, q="f16", kv="f16", o="f16"),
    unit("rope_half_e4m3", ROPE_HALF, kv="e4m3"),
    unit("rope_next_e4m3_d80", ROPE_NEXT, qk=80, vo=80, kv="e4m3"),
    unit("rope_half_d48", ROPE_HALF, qk=48, vo=48, paged=False),
    unit("fixed", fixed=True, memory=".ctas_per_sm = 2"),
    unit("fixed_mask_f32", "CustomMask", qk=64, vo=64, fixed=True, o="f32", memory=".ctas_per_sm = 2"),
    unit("fixed_softcap", "SoftCap", qk=64, vo=64, fixed=True, o="f32", memory=".ctas_per_sm = 2"),
    unit("fixed_sigmoid", "Sigmoid", qk=64, vo=64, fixed=True, o="f32", memory=".ctas_per_sm = 2"),
    unit("fixed_mla", qk=576, vo=512, fixed=True, memory=WIDE, compute=WIDE),
]


ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted(p.stem for p in (ROOT / "examples/variants").glob("*.h"))
USER = [unit(f"user_{e}", "User<Chosen>", user=e) for e in EXAMPLES]
USER += [unit(f"user_{e}_fixed_f32", "User<Chosen>", user=e, qk=64, vo=64, o="f32", fixed=True, memory=".ctas_per_sm = 2") for e in EXAMPLES]
USER += [unit(f"user_{e}_with_others", "Compose<Alibi, SoftCap, User<Chosen>>", user=e, qk=64, vo=64, kv="e4m3") for e in EXAMPLES]


def chosen(name, variant="Plain", qk=128, vo=128, q="bf16", kv="bf16", o="bf16", paged=True, fixed=False, shared=233472):
    """A unit as the product makes it: tiles by choose.h."""
    u = unit(name, variant, qk, vo, q, kv, o, paged, fixed)
    spec = (f"{{.head_dim_qk = {qk}, .head_dim_vo = {vo}, .q_dtype = kvloom::DType::{q}, .kv_dtype = kvloom::DType::{kv}, .o_dtype = kvloom::DType::{o}, "
            f".paged = {str(paged).lower()}, .fixed_split = {str(fixed).lower()}, .rotates_keys = {str('Rope' in variant).lower()}, "
            f".makes_masks = {str('CustomMask' in variant).lower()}, .shared_per_sm = {shared}}}")
    u["memory"], u["mixed_memory"], u["compute"] = (f"kvloom::sm80::{c}_config({spec})" for c in ("memory", "mixed_memory", "compute"))
    return u


CHECKS += [chosen(f"chosen_d{d}", qk=d, vo=d) for d in (32, 48, 96, 112, 144, 160, 192, 224, 240)]
CHECKS += [
    chosen("chosen_d256_e5m2_rope", ROPE_HALF, qk=256, vo=256, kv="e5m2"),
    chosen("chosen_d96_240_e5m2_fixed", qk=96, vo=240, q="f16", kv="e5m2", o="f32", fixed=True),
    chosen("chosen_d16_256_e4m3", qk=16, vo=256, kv="e4m3"),
    chosen("chosen_d256_small", qk=256, vo=256, shared=102400),
    chosen("chosen_d128_small_fixed", ROPE_HALF, fixed=True, shared=102400),
    chosen("chosen_mla_e4m3_fixed", qk=576, vo=512, kv="e4m3", fixed=True),
    chosen("chosen_d128_all", "Compose<Alibi, SoftCap, CustomMask, Rope<kvloom::RopeMode::half_split>>", kv="e4m3"),
    chosen("chosen_d64_128_ragged", qk=64, vo=128, paged=False, q="f16", kv="f16", o="f32"),
    chosen("chosen_d16_fixed_e5m2", "Alibi", qk=16, vo=16, kv="e5m2", q="f16", o="f16", fixed=True),
]


def text(u):
    headers = "".join(f'#include "kvloom/variants/{h}.h"\n' for h in ("plain", "alibi", "soft_cap", "custom_mask", "sigmoid", "rope", "compose", "user"))
    if u["user"]:
        headers += f'#line 1 "{u["user"]}.h"\n' + (ROOT / "examples/variants" / (u["user"] + ".h")).read_text() + '#line 1 "unit"\n'
    return (f'#include "kvloom/device/sm80/unit.cuh"\n{headers}\nnamespace {{\nusing namespace kvloom::variants;\nusing Variant = {u["variant"]};\n'
            f'constexpr kvloom::sm80::AttendConfig kMemory{{{u["memory"]}}};\nconstexpr kvloom::sm80::AttendConfig kMixedMemory{{{u.get("mixed_memory", u["memory"])}}};\nconstexpr kvloom::sm80::AttendConfig kCompute{{{u["compute"]}}};\n}}  // namespace\n\n'
            + entries(u.get("only")))


# Of both classes, beside the facts that every kernel has.
TILES = 'extern "C" __device__ int32_t lab_tiles[4] = {{{0}.tile_rows, {0}.tile_kv, {1}.tile_rows, {1}.tile_kv}};\n'


def entries(only):
    if not only:
        return (TILES.format("kMemory", "kCompute") + "KVLOOM_SM80_ATTEND(attend_memory, kMemory, Variant)\n"
                "KVLOOM_SM80_ATTEND(attend_compute, kCompute, Variant)\nKVLOOM_SM80_ATTEND_MIXED(attend_mixed, kMixedMemory, kCompute, Variant)\n"
                "KVLOOM_SM80_ATTEND(attend_small, kMixedMemory, Variant)\n")
    c = "kCompute" if only == "compute" else "kMemory"
    return TILES.format(c, c) + f"KVLOOM_SM80_ATTEND(attend_{only}, {c}, Variant)\n"


def row(u):
    v = u["variant"]
    rope = 2 if "half_split" in v else 1 if "interleaved" in v else 0
    user = f'"examples/variants/{u["user"]}.h"' if u["user"] else "nullptr"
    return (f'{{"{u["name"]}", {u["qk"]}, {u["vo"]}, DType::{u["q"]}, DType::{u["kv"]}, DType::{u["o"]}, {str(u["paged"]).lower()}, {str(u["fixed"]).lower()}, '
            f'{str("Alibi" in v).lower()}, {str("SoftCap" in v).lower()}, {str("CustomMask" in v).lower()}, {str("Sigmoid" in v).lower()}, {rope}, {user}}},')


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    from speed_units import speed
    groups = {"checks": CHECKS, "user": USER, "speed": speed(unit)}
    units = [u for g, us in groups.items() for u in us if len(sys.argv) < 3 or u["name"] in sys.argv[2:] or g in sys.argv[2:]]
    for u in units:
        path = out / (u["name"] + ".cu")
        if not path.exists() or path.read_text() != text(u):
            path.write_text(text(u))
    (out / "table.inc").write_text("\n".join(row(u) for u in units) + "\n")
    (out / "names").write_text("\n".join(u["name"] for u in units) + "\n")


if __name__ == "__main__":
    main()

"""Units that are timed only: what is tried for speed. Each has the one kernel that is timed."""


def compute(unit, name, text="", variant="Plain", only="compute", **more):
    return dict(unit(name, variant=variant, compute=text, **more), only=only)


def memory(unit, name, text="", variant="Plain", **more):
    return dict(unit(name, variant=variant, memory=text, **more), only="memory")


ROPE = "Rope<kvloom::RopeMode::half_split>"
C256 = ".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1"
DRIFT = C256 + ", .stages = 3, .ahead = 1"


def speed(unit):
    wide = ".tile_kv = 32, .ctas_per_sm = 1, .q_in_registers = false"
    return [
        compute(unit, "c_128"),
        compute(unit, "c_128_r", paged=False),
        compute(unit, "c_drift", DRIFT),
        compute(unit, "c_drift_r", DRIFT, paged=False),
        compute(unit, "c_drift4", C256 + ", .stages = 4, .ahead = 2"),
        compute(unit, "c_drift_l2", DRIFT + ", .loads_ahead = 2"),
        compute(unit, "c_alibi", variant="Alibi"),
        compute(unit, "c_softcap", variant="SoftCap"),
        compute(unit, "c_mask", variant="CustomMask"),
        compute(unit, "c_alibi_drift", DRIFT, variant="Alibi"),
        compute(unit, "c_softcap_drift", DRIFT, variant="SoftCap"),
        compute(unit, "c_mask_drift", DRIFT, variant="CustomMask"),
        compute(unit, "c_mask_drift4", C256 + ", .stages = 4, .ahead = 2", variant="CustomMask"),
        compute(unit, "c_rope", variant=ROPE),
        compute(unit, "c_e4m3", kv="e4m3"),
        compute(unit, "c_rope_drift", DRIFT, variant=ROPE),
        compute(unit, "c_e4m3_drift", DRIFT, kv="e4m3"),
        memory(unit, "m3"),
        memory(unit, "m3_r", paged=False),
        memory(unit, "m2s3", ".stages = 3, .ctas_per_sm = 2"),
        unit("mixed8w", memory=".tile_kv = 128, .warps_kv = 8, .stages = 3, .ctas_per_sm = 1", compute=DRIFT),
        memory(unit, "m8w", ".tile_kv = 128, .warps_kv = 8, .stages = 3, .ctas_per_sm = 1"),
        memory(unit, "m_e4m3_64s3", ".stages = 3, .ctas_per_sm = 3", kv="e4m3"),
        memory(unit, "m_e4m3_128s2", ".tile_kv = 128, .stages = 2, .ctas_per_sm = 2", kv="e4m3"),
        memory(unit, "m_e4m3_128s3", ".tile_kv = 128, .stages = 3, .ctas_per_sm = 2", kv="e4m3"),
        memory(unit, "m_e4m3_cvt", ".tile_kv = 128, .stages = 3, .ctas_per_sm = 2, .place_fp8_values = false", kv="e4m3"),
        memory(unit, "m_e4m3_8w", ".tile_kv = 128, .warps_kv = 8, .stages = 3, .ctas_per_sm = 2", kv="e4m3"),
        memory(unit, "m_e4m3_f16", ".tile_kv = 128, .stages = 3, .ctas_per_sm = 2", q="f16", kv="e4m3", o="f16"),
        memory(unit, "m_rope", variant=ROPE),
        memory(unit, "m_rope_2s3", ".stages = 3, .ctas_per_sm = 2", variant=ROPE),
        memory(unit, "m_alibi", variant="Alibi"),
        memory(unit, "m_softcap", variant="SoftCap"),
        memory(unit, "m_fixed", ".ctas_per_sm = 2", fixed=True),
        memory(unit, "m_fixed_s3", ".stages = 3, .ctas_per_sm = 2", fixed=True),
        memory(unit, "m_mla", wide, qk=576, vo=512),
    ]

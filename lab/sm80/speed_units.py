"""Units that are timed only: what is tried for speed. Each has the one kernel that is timed."""
SLICED = ".slice_keys = 32"


def compute(unit, name, text="", variant="Plain", only="compute", **more):
    return dict(unit(name, variant=variant, compute=text, **more), only=only)


def memory(unit, name, text="", variant="Plain", **more):
    return dict(unit(name, variant=variant, memory=text, **more), only="memory")


def speed(unit):
    wide = ".tile_kv = 32, .ctas_per_sm = 1, .q_in_registers = false"
    return [
        compute(unit, "c_s32"),
        compute(unit, "c_s32_r", paged=False),
        compute(unit, "c_whole", ".slice_keys = 0"),
        compute(unit, "c_whole_r", ".slice_keys = 0", paged=False),
        compute(unit, "c_8w", ".slice_keys = 0, .warps_rows = 8"),
        compute(unit, "c_256", ".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1, .stages = 3"),
        compute(unit, "c_256r", ".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1, .stages = 3", paged=False),
        compute(unit, "c_256x128", ".tile_rows = 256, .warps_rows = 8, .ctas_per_sm = 1, .tile_kv = 128"),
        compute(unit, "c_alibi", variant="Alibi"),
        compute(unit, "c_softcap", variant="SoftCap"),
        compute(unit, "c_softcap_ftz", variant="SoftCap"),
        compute(unit, "c_alibi_whole", ".slice_keys = 0", variant="Alibi"),
        compute(unit, "c_softcap_whole", ".slice_keys = 0", variant="SoftCap"),
        compute(unit, "c_mask", variant="CustomMask"),
        compute(unit, "c_rope", variant="Rope<kvloom::RopeMode::half_split>"),
        compute(unit, "c_e4m3", kv="e4m3"),
        memory(unit, "m3"),
        memory(unit, "m3_r", paged=False),
        memory(unit, "m2s3", ".stages = 3, .ctas_per_sm = 2"),
        memory(unit, "m8w", ".tile_kv = 128, .warps_kv = 8, .stages = 3, .ctas_per_sm = 1"),
        memory(unit, "m64t", ".tile_kv = 32, .warps_kv = 2, .stages = 4, .ctas_per_sm = 3"),
        memory(unit, "m_e4m3_s4", ".stages = 4, .ctas_per_sm = 3", kv="e4m3"),
        memory(unit, "m_e4m3_128", ".tile_kv = 128, .stages = 2, .ctas_per_sm = 3", kv="e4m3"),
        memory(unit, "m_e4m3_128s3", ".tile_kv = 128, .stages = 3, .ctas_per_sm = 2", kv="e4m3"),
        memory(unit, "m_e4m3_f16", ".tile_kv = 128, .stages = 2, .ctas_per_sm = 3", q="f16", kv="e4m3", o="f16"),
        memory(unit, "m_rope", variant="Rope<kvloom::RopeMode::half_split>"),
        memory(unit, "m_alibi", variant="Alibi"),
        memory(unit, "m_softcap", variant="SoftCap"),
        memory(unit, "m_fixed", ".ctas_per_sm = 2", fixed=True),
        memory(unit, "m_mla", wide, qk=576, vo=512),
    ]

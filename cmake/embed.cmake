# Writes OUT: a C++ file with the texts of all headers under ROOT/kvloom that a generated unit may include. Only rewritten when it changed.
#   cmake -DROOT=<source dir> -DOUT=<file> -P embed.cmake
cmake_minimum_required(VERSION 3.25)
set(files "")
foreach(room base contract attn variants device)
  file(GLOB_RECURSE found RELATIVE ${ROOT} ${ROOT}/kvloom/${room}/*.h ${ROOT}/kvloom/${room}/*.cuh)
  list(APPEND files ${found})
endforeach()
# Of the planner what the device's shares with the host's.
list(APPEND files kvloom/plan/cost.h kvloom/plan/cuts.h kvloom/plan/device_args.h kvloom/plan/flat.h kvloom/plan/tile_shape.h kvloom/plan/whole.h)
list(SORT files)
# What a user's variant is compiled with for the CPU: after the device's, which it may include too.
set(host kvloom/cpu/chunk.h kvloom/cpu/keys.h kvloom/cpu/live_keys.h kvloom/cpu/rows.h kvloom/cpu/score.h kvloom/cpu/score_rows.inl
         kvloom/cpu/target.h kvloom/cpu/user_stage.inl)
list(LENGTH files count)
set(text "// Made by cmake/embed.cmake: change the headers, not this.\n#include \"kvloom/jit/sources.h\"\n\nnamespace kvloom::jit {\nnamespace {\n\nconstexpr SourceText kSources[] = {\n")
foreach(name ${files} ${host})
  file(READ ${ROOT}/${name} body)
  string(APPEND text "    {\"${name}\", R\"kvloom_text(${body})kvloom_text\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace\n\nSpan<const SourceText> device_sources() { return {kSources, ${count}}; }\nSpan<const SourceText> host_sources() { return {kSources, int64_t(sizeof kSources / sizeof kSources[0])}; }\n\n}  // namespace kvloom::jit\n")
file(CONFIGURE OUTPUT ${OUT} CONTENT "@text@" @ONLY)

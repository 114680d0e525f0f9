# Writes OUT: a C++ file that defines `extern const char NAME[]` in namespace SPACE, the texts of FILES one behind another without what they
# include of the tool's own. Only rewritten when it changed.
#   cmake -DFILES=a.h,b.cuh -DSPACE=kvloom::replay -DNAME=kText -DOUT=<file> -P embed_text.cmake
cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" FILES "${FILES}")
set(body "")
foreach(file ${FILES})
  file(READ ${file} part)
  string(REGEX REPLACE "#pragma once\n" "" part "${part}")
  string(REGEX REPLACE "#include \"cli/[^\n]*\n" "" part "${part}")
  string(APPEND body "${part}")
endforeach()
set(text "// Made by cmake/embed_text.cmake: change the headers, not this.\nnamespace ${SPACE} {\nextern const char ${NAME}[];\nconst char ${NAME}[] = R\"kvloom_text(${body})kvloom_text\";\n}  // namespace ${SPACE}\n")
file(CONFIGURE OUTPUT ${OUT} CONTENT "@text@" @ONLY)

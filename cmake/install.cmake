# Headers, library and find_package(kvloom). Only what users include is installed: no room behind the interface, no header of fmt.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(kvloom_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvloom)

set_target_properties(kvloom PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} DEFINE_SYMBOL "")
get_target_property(kvloom_type kvloom TYPE)
if(kvloom_type STREQUAL "SHARED_LIBRARY" AND NOT APPLE)
  target_link_options(kvloom PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
  set_target_properties(kvloom PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
endif()

install(TARGETS kvloom EXPORT kvloomTargets COMPONENT kvloom INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(room base contract attn variants)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/kvloom/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvloom COMPONENT kvloom FILES_MATCHING PATTERN "*.h")
endforeach()
foreach(header plan/scheduler_config.h support/error.h api/engine.h api/ops.h api/user_variant.h api/kvloom.h api/kvloom_device_plan.h)
  cmake_path(GET header PARENT_PATH room)
  install(FILES ${PROJECT_SOURCE_DIR}/kvloom/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvloom/${room} COMPONENT kvloom)
endforeach()

# What a C compiler has to be told when it links the static library: -lstdc++ (or -lc++ -lc++abi) and -lm.
set(kvloom_cxx_runtime ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(FILTER kvloom_cxx_runtime INCLUDE REGEX "^(stdc\\+\\+|c\\+\\+|c\\+\\+abi|m)$")
list(REMOVE_DUPLICATES kvloom_cxx_runtime)
set(kvloom_needs "")
foreach(lib ${kvloom_cxx_runtime} ${CMAKE_DL_LIBS})
  string(APPEND kvloom_needs " -l${lib}")
endforeach()
string(APPEND kvloom_needs " -pthread")
# pkg-config: where there is a static library alone, every program needs them, not only one that asks for --static.
set(kvloom_pc_libs "")
set(kvloom_pc_private_libs "")
if(kvloom_type STREQUAL "SHARED_LIBRARY")
  set(kvloom_pc_private_libs "${kvloom_needs}")
else()
  set(kvloom_pc_libs "${kvloom_needs}")
endif()

install(EXPORT kvloomTargets NAMESPACE kvloom:: DESTINATION ${kvloom_package_dir} COMPONENT kvloom)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvloomConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/kvloomConfig.cmake
                              INSTALL_DESTINATION ${kvloom_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/kvloomConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(${PROJECT_SOURCE_DIR}/cmake/kvloom.pc.in ${PROJECT_BINARY_DIR}/cmake/kvloom.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cmake/kvloomConfig.cmake ${PROJECT_BINARY_DIR}/cmake/kvloomConfigVersion.cmake
        DESTINATION ${kvloom_package_dir} COMPONENT kvloom)
install(FILES ${PROJECT_BINARY_DIR}/cmake/kvloom.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT kvloom)

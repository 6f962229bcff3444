# The first of the programs that build images; read by build.sh and overlay.sh.
container_tool() {
    docker info >/dev/null 2>&1 && echo docker && return
    command -v podman && return
    command -v buildah && return
    echo "docker, podman or buildah is needed to build images (apt-get install buildah)" >&2
    exit 2
}

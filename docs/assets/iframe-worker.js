// Search on pages that are opened from a disk: there, browsers refuse web workers. This one runs its
// script in a hidden frame instead. mkdocs-material looks for the name `IFrameWorker`.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.target = frame.contentWindow;
      this.target.reply = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve) => { this.target.onScript = resolve; });
      this.target.document.write(
        "<script>postMessage = reply; importScripts = async () => {};<\/script>" +
        `<script src="${url}" onload="onScript()"><\/script>`,
      );
      this.target.document.close();
    }
    postMessage(data) {
      this.loaded.then(() => this.target.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}

import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            wanted = request.requested_output_names()
            same = [(t.name().replace("in_", "out_"), t.as_numpy()) for t in request.inputs()]
            answers.append(utils.InferenceResponse([utils.Tensor(n, v) for n, v in same if n in wanted]))
        return answers
